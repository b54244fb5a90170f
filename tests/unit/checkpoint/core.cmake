# tests of checkpoint/core
hyperion_tests(test_checkpoint_names LABEL unit SOURCES names_test.cpp LINK hyperion_checkpoint_names)
hyperion_tests(test_checkpoint_plan LABEL unit SOURCES save_plan_test.cpp cast_test.cpp finite_test.cpp LINK hyperion_checkpoint_plan)
hyperion_tests(test_checkpoint_saver LABEL unit SOURCES saver_test.cpp LINK hyperion_checkpoint)
