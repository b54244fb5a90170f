# tests of checkpoint/storage
hyperion_tests(test_checkpoint_storage LABEL unit
  SOURCES checkpoint_folder_test.cpp folder_lock_test.cpp folder_scan_test.cpp manifest_test.cpp shard_reader_test.cpp
    shard_writer_test.cpp
  LINK hyperion_checkpoint_storage SKIP "^skipped: ")
