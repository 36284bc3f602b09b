"""The methods of the paper's tables, by the name that the tables print."""

from collections.abc import Mapping

METHODS: Mapping[str, str] = {
    "FedAvg": "fedavg@authors",
    "FedProx": "fedprox@authors",
    "SCAFFOLD": "scaffold@authors",
    "FedDyn": "feddyn@authors",
    "FedNTD": "fedntd@authors",
    "FedVARP": "fedvarp@authors",
    "FedLC": "fedlc@authors",
    "FedDecorr": "feddecorr@authors",
    "FedSOL": "fedsol@authors",
    "FedACG": "fedacg@authors",
    "LocalGC": "localgc@authors",
    "GlobalGC": "globalgc@authors",
    "GC-Fed": "gcfed@authors",
}
"""The algorithm of each, as its authors ran it, in the order of the tables."""
