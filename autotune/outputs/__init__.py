"""What a study leaves behind and shows: progress, report, exports, MLflow runs."""
