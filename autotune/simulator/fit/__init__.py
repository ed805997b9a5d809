"""`autotune calibrate`: fits the simulator's figures to measurements.

    own_table     a table of measurements -> raw rows, checked
    rows          a row with its command resolved as the measured version does, its workload, its cold start
    reading       tables and studies -> rows
    points        equivalent rows as one point; groups that a cross-validation leaves out
    problem       the fit as a least-squares problem: unknowns, residuals, differences
    solving       the factors, with and without some of the points
    errors        prediction errors to state, from what the fit got wrong
    fit           points in, a calibration out
    tables        measured against predicted: rows, errors, and whether the best are predicted to be the best

Columns, rules and where the shipped figures come from: ``docs/calibration.md``.
"""
