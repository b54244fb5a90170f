# tests of checkpoint/format
hyperion_library(hyperion_dcp_folder SOURCES dcp_folder.cpp LINK hyperion_checkpoint_format)
hyperion_tests(test_safetensors LABEL unit SOURCES safetensors_test.cpp LINK hyperion_safetensors)
hyperion_tests(test_checkpoint_format LABEL unit
  SOURCES crc32_test.cpp pickle_test.cpp zip_slice_test.cpp archive_test.cpp metadata_test.cpp object_test.cpp dcp_goldens_test.cpp
  LINK hyperion_dcp_folder nlohmann_json::nlohmann_json)
