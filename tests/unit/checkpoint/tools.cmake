# tests of checkpoint/tools
hyperion_tests(test_checkpoint_tools LABEL unit
  SOURCES tools_text_test.cpp tools_digest_test.cpp tools_diff_test.cpp tools_verify_test.cpp tools_list_test.cpp
    tools_convert_test.cpp
  LINK hyperion_checkpoint_tools hyperion_dcp_folder)
