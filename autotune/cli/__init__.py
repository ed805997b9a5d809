"""Run each command of the command line: call the product, print the outcome."""
