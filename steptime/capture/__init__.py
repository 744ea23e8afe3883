"""Getting a trace from a job that runs.

``attach`` takes it from outside; ``watch`` is the hook inside the job, ``request`` the agreement between the job and
who asks, ``ask`` that who.
"""
