"""The doctor: read logs and printouts that an operator pastes in, and return ranked findings.

In: streams of text from `readers`. Out: a report with inputs, events and findings, the best first. A sign is one row of
packs/signatures; a judgement over several signs is one function in `judgements`. Never here: a clock, a network
client, a finding without the line that supports it.
"""
