"""Data sets, who holds which of their examples, and how images are prepared."""

from gcfed.core.types import Examples as Examples
from gcfed.data.datasets import builtin as builtin, official as official, user as user
from gcfed.data.datasets.dataset import DATASETS as DATASETS, Dataset as Dataset
from gcfed.data.datasets.lazy_items import Lazy as Lazy
from gcfed.data.datasets.user import dataset_from as dataset_from
from gcfed.data.downloads.catalog import data_dir as data_dir
from gcfed.data.federated import FederatedData as FederatedData
from gcfed.data.partitions.partition import Partition as Partition, Pool as Pool
from gcfed.data.partitions.ways import PARTITIONS as PARTITIONS
from gcfed.data.validation import split_validation as split_validation
