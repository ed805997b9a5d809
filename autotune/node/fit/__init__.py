"""`autotune calibrate`: fits the simulator's figures to measurements.

    reading       tables -> rows, each with its command resolved as the measured version does;
                  equivalent rows as one point; groups that a cross-validation leaves out
    calibrate     the fit as a least-squares problem, with and without some of the points, and its
                  prediction errors
    report        measured against predicted: rows, errors, and whether the best are predicted to be
                  the best

Columns, rules and where the shipped figures come from: ``docs/calibration.md``.
"""
