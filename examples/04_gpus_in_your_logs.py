"""Put what the GPUs do onto every line of a program's log.

`python examples/04_gpus_in_your_logs.py`. The filter needs the standard library, and nvidia-ml-py where there is a GPU;
without a GPU it prints a notice and logging continues.
"""

import json
import logging
import sys
import time

from watchkeeper.instrument.log_context import GpuContext


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"message": record.getMessage(), "gpus": record.__dict__["gpu_states"]})


gpus = GpuContext(every_seconds=1)
for stream, form in (
    (sys.stderr, JsonLines()),
    (sys.stdout, logging.Formatter("%(message)s | %(gpu_context)s")),
):
    handler = logging.StreamHandler(stream)
    handler.setFormatter(form)
    handler.addFilter(gpus)
    logging.getLogger().addHandler(handler)

log = logging.getLogger("train")
log.setLevel(logging.INFO)
for step in range(3):
    log.info("step %d", step)
    time.sleep(0.7)
