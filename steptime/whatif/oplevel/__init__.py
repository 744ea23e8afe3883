"""Jobs recorded as operations of a pipeline, not as traces: one row for each op, one recorded worker for each cell.

The input, the dependencies and the quantities are those of the artifact of "Understanding Stragglers in Large Model
Training Using What-if Analysis" (OSDI'25, github.com/ByteDance-Seed/StragglerAnalysis).
"""
