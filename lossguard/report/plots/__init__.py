"""Pictures of a report, drawn from its JSON. The same JSON gives the same bytes."""
