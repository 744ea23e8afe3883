"""What it means: a report in, the same report with findings, unevaluated rules and the checklist out."""
