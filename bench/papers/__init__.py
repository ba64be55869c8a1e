"""Figures of five papers, each beside the same figure in virtual time on a model of its machine.

Every operation and transfer takes the time that the rates of the model give it; nothing is
computed. Real runs have the same plans, schedules, task graphs and dispatcher.
"""
