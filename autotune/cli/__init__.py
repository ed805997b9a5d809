"""Implement the commands of the command line: call the product, print the outcome."""
