# tests of checkpoint/format
