# tests of checkpoint/core
