"""Names that a hyperparameter cannot have, since a table has one column for each hyperparameter beside its own."""

TABLE_COLUMNS = frozenset(
    {
        # what a search is
        *("workload", "optimizer", "batch_size", "dataset", "model", "goal_metric", "goal_threshold", "repeat"),
        *("budget_multiple", "stage", "rerun", "rule", "base_batch_size", "train_steps", "tokens_per_example"),
        *("stopping", "batch_schedule", "tuned_for", "search", "certify"),
        # trials: as they are loaded, tabled and exported
        *("trial", "trial_id", "seed", "status", "end", "ended", "recorded", "first_bad_step", "steps_to_goal"),
        *("least_error", "counted", "exact", "seconds_training", "seconds_evaluation", "step"),
        # steps to the goal, and the tuned configuration with fresh seeds
        *("reached", "steps_to_result", "examples_to_result", "tokens_to_result", "tuned_trial", "steps_n", "low"),
        *("high", "censored_at", "first_evaluation", "step_before", "complete", "incomplete", "infeasible"),
        *("seeds", "missed", "tuned_steps", "tuned_low", "tuned_high", "optimum_low", "optimum_high", "luck"),
        *("seed_sd", "residual_sd", "grid_error", "read_from", "curve_steps", "steps_trained"),
    }
)
"""The columns of the tables that also hold hyperparameters: `steps_to_result`, `trials` and those of `study export`."""
