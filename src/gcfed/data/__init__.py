"""Data sets, who holds which of their examples, and the batches clients train on."""

from gcfed.data import builtin as builtin, official as official, user as user
from gcfed.data.catalog import data_dir as data_dir
from gcfed.data.dataset import DATASETS as DATASETS, Dataset as Dataset, Examples as Examples
from gcfed.data.federated import FederatedData as FederatedData
from gcfed.data.partition import Partition as Partition, Pool as Pool
from gcfed.data.partitions import PARTITIONS as PARTITIONS
from gcfed.data.user import dataset_from as dataset_from
from gcfed.data.validation import split_validation as split_validation
