"""Readers of the logs that other tools write: each makes tables (`tables.Table`). Nothing in a source is executed.

tables          rows of one run or of several, and settings
tabular         CSV, TSV, JSON lines, JSON and parquet files
settings        YAML and JSON files with hyperparameters beside the logs of a run
wandb_files     charts that Weights & Biases exports, and its offline files
mlflow_store    MLflow's folder mlruns and its SQLite database
tensorboard     event files
sources         which reader reads what
"""
