"""Read `dkms status` and the kernels that the text names: is the driver built for the running and the next one?"""

from __future__ import annotations

from watchkeeper.doctor.cluster_records import node_records
from watchkeeper.doctor.listing import Listing
from watchkeeper.readers.node import dkms_text
from watchkeeper.readers.node.kernel_modules import version_key


def read_driver_signs(listing: Listing) -> None:
    if "nvidia" not in listing.text or not any(map(dkms_text.ENTRY.match, listing.lines)):
        return
    # In the output of several nodes, each has its own kernels.
    sections = [(record.first, record.last) for record in node_records(listing)] or [(1, len(listing.lines))]
    for first, last in sections:
        builds = dkms_text.read_builds(listing.lines[first - 1 : last])
        if builds.line and len(builds.running) <= 1:
            _add_signs(builds, listing, first - 1)


def _add_signs(builds: dkms_text.ModuleBuilds, listing: Listing, lines_before: int) -> None:
    missing, newest, line = builds.running - builds.installed, builds.newest, lines_before + builds.line
    if not builds.installed:
        listing.add_sign("dkms-not-installed", line)
    elif missing:
        listing.add_sign("dkms-running-kernel-missing", line, kernel=min(missing))
    elif newest is not None and version_key(newest) > max(map(version_key, builds.installed)):
        listing.add_sign("dkms-newest-kernel-missing", line, kernel=newest)
    if builds.differs_line:
        listing.add_sign("dkms-module-differs", lines_before + builds.differs_line)
