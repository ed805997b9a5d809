"""Output of a study: progress, report, exports, MLflow runs."""
