"""The report as one HTML file that needs no script, no style sheet and no network."""
