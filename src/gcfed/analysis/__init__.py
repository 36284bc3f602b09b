"""Measurements of a round beyond accuracy: probes, by name and of one's own."""

from gcfed.analysis.cka import CKA as CKA
from gcfed.analysis.clients import ClientAccuracy as ClientAccuracy
from gcfed.analysis.drift import Drift as Drift
from gcfed.analysis.participation import Participation as Participation
from gcfed.analysis.probe import PROBES as PROBES, Observation as Observation, Probe as Probe
