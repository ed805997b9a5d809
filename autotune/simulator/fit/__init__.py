"""Learning the simulator's figures from measurements: reads, groups and tells them.

    readers.py            a file or a study -> measured rows; the formats: performance_lab, dstack, own_table, studies
    raw.py                a row as a file gives it, and the checks of its numbers
    loads.py              the workload of a row
    rows.py               a row as the measured version of its engine understands it
    cold.py               a server that answers nobody at first
    points.py             twins as one point; groups to be left out
    problem.py            the fit as a least-squares problem: unknowns, residuals, differences
    solving.py            the factors, with and without some of the points
    errors.py             how sure predictions may be, from what the fit got wrong
    fit.py                all of it together: points in, a calibration out
    predicted.py          what a fit says of a point
    tables.py             measured against predicted, row by row
    rankings.py           are the best configurations predicted to be the best?

The formats, the rules and where the shipped figures come from: ``docs/calibration.md``.
"""
