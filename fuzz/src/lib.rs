//! Fuzz targets, and the replay of their corpora.
