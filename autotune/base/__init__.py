"""What every room uses: errors, array types, child processes, redaction, files written safely."""
