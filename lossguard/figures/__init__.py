"""Numbers behind the pictures of a report: pure functions from arms to JSON, counted once where the run is judged."""
