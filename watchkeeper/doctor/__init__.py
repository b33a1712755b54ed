"""The doctor: anything an operator would paste in, ranked findings out.

Comes in: streams of text from `readers`. Goes out: a Report with inputs, events and findings, best first.
A signature is one row of packs/signatures; a judgement over several signs is one function in `judgements`.
Never here: a clock, a network client, an answer without the line it rests on.
"""
