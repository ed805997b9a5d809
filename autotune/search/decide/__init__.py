"""What is decided from the launches: finals, the sequential test, the verdict, the shortest command."""
