"""A simulated GPU fleet: physics, jobs, faults, exporters, kernel logs and a cluster.

In: a size, a seed, scenarios from packs/scenarios. Out: what real nodes would serve over HTTP. Never here: an import of
the product above catalogue/; the simulator must not know the product that monitors it.
"""
