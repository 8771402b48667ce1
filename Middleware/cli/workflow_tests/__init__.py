"""Workflow tests as data: ``<workflow>.test.json`` beside a workflow, run without any LLM.

``reading`` makes tests of files, ``running`` runs them, ``expectations`` judges what came of it, ``report`` tells.
"""
