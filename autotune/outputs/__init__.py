"""Progress, report, exports, MLflow runs of a study.

It hides Markdown, HTML, pictures, ten formats of deployment and MLflow. Public: `progress.Progress`,
`report.render.render`, `export.write_artefacts`, `tracking.Tracker`, `bundle`, `study_comparison`.
"""
