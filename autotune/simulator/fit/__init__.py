"""`autotune calibrate`: fits the simulator's figures to measurements.

    table         a table of measurements -> rows, each with its command resolved as the measured version does
    reading       tables and studies -> rows
    points        a row's cold start and weight; equivalent rows as one point; groups that a cross-validation leaves out
    solving       the fit as a least-squares problem, solved with and without some of the points
    errors        prediction errors to state, from what the fit got wrong
    calibrate     points in, a calibration out
    report        measured against predicted: rows, errors, and whether the best are predicted to be the best

Columns, rules and where the shipped figures come from: ``docs/calibration.md``.
"""
