"""Ask a running hub what is wrong and how hot the fleet is: `python examples/01_ask_a_hub.py [URL]`.

Needs nothing but the base install; start a hub with `watchkeeper up` first.
"""

import sys

from watchkeeper.client.hub import DEFAULT_URL, HubClient

hub = HubClient(sys.argv[1] if len(sys.argv) > 1 else DEFAULT_URL)

hottest = hub.query("topk(3, DCGM_FI_DEV_GPU_TEMP)")
for series in hottest["result"]:
    labels, (_, celsius) = series["metric"], series["value"]
    print(f"{labels['Hostname']} GPU {labels['gpu']}: {celsius} °C")

open_incidents = hub.incidents()
for incident in open_incidents:
    print(f"{incident['id']} {incident['severity']}: {incident['title']}. Next: {incident['next_step']}")
if not open_incidents:
    print("No open incidents.")
