# tests of checkpoint/storage
