"""Simulate 64 GPUs without any server, lose one, and read what its node says.

`python examples/02_break_a_fleet_in_memory.py`. The same seed and the same calls give the same bytes, so this is
also how to write a test of your own.
"""

from watchkeeper.sim.simulation import SimSettings, Simulation

fleet = Simulation(SimSettings(gpus=64, seed=7))
fault = fleet.inject("xid-79", node="gpu-r01-02", gpu=3)
fleet.advance(5)

for record in fleet.kernel_records_since(0):
    if "Xid" in record.record:
        print(record.node, record.record.partition(";")[2])

page = fleet.node_page("gpu-r01-02").decode()
reporting = [line for line in page.splitlines() if line.startswith("DCGM_FI_DEV_GPU_TEMP{")]
print(f"{len(reporting)} of 8 GPUs report; the right cause is {fault.scenario.truth.cause}")
