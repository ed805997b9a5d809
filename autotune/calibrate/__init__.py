"""Fits the simulated node's figures to measured rows: ``autotune calibrate``.

    problem.py    the fit as a least-squares problem: unknowns, residuals, differences
    fit.py        the fit, and what it predicts for groups that it has not seen
    errors.py     how sure predictions may be, from what the fit got wrong
"""
