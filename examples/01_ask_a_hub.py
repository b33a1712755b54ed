"""Ask a running hub what is wrong and how hot the fleet is: `python examples/01_ask_a_hub.py [URL]`.

Needs nothing but the base install; start a hub with `watchkeeper up` first.
"""

import sys

from watchkeeper.client.hub import DEFAULT_URL, Client

hub = Client(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL)

for series in hub.query("topk(3, DCGM_FI_DEV_GPU_TEMP)").series:
    print(f"{series.labels['Hostname']} GPU {series.labels['gpu']}: {series.newest:g} °C")

open_incidents = hub.incidents()
for incident in open_incidents:
    print(f"{incident.id} {incident.severity}: {incident.title}. Next: {incident.next_step}")
if not open_incidents:
    print("No open incidents.")
