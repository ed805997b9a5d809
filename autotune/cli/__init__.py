"""What each command of the command line does: call the product, print the outcome."""
