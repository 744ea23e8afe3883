"""Is the candidate slower than the baseline, can these runs tell, and why?"""
