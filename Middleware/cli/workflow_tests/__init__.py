"""Workflow tests as data: ``<workflow>.test.json`` beside a workflow, run without any LLM.

``reading`` makes tests of files, ``running`` runs them, ``expectations`` compares the results, ``command`` prints.
"""
