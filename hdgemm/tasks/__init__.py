"""Task-superscalar runtime: serial code inserts tasks, their data accesses order them.

The method is described by Dongarra et al., "Model-Driven One-Sided Factorizations on Multicore
Accelerated Systems", and of Donfack et al., "Dynamically balanced synchronization-avoiding LU
factorization with multicore and GPUs".
"""
