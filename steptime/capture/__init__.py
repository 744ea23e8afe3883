"""Getting a trace from a job that runs.

``request`` is the agreement between who asks and the job; ``watch`` is the hook inside the job.
"""
