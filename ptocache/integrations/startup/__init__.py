"""The folder that ``ptocache run`` puts first on ``PYTHONPATH``: Python imports ``sitecustomize`` from it."""
