"""How the ranks of a job add up: which steps count, and the totals over them."""
