"""Teacher-forced scores of served tokens under an FP32 LM head."""
