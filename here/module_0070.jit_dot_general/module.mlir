#loc1 = loc("args[0]")
#loc2 = loc("args[1]")
module @jit_dot_general attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2x8x4xf32> loc("args[0]"), %arg1: tensor<4x4xf32> loc("args[1]")) -> (tensor<2x8x4xf32> {jax.result_info = "result"}) {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [2] x [0], precision = [DEFAULT, DEFAULT] : (tensor<2x8x4xf32>, tensor<4x4xf32>) -> tensor<2x8x4xf32> loc(#loc7)
    return %0 : tensor<2x8x4xf32> loc(#loc6)
  } loc(#loc)
} loc(#loc)
#loc = loc(unknown)
#loc3 = loc("/work/wt/last32/tests/conformance/test_advice_code.py":64:35 to :50)
#loc4 = loc("_own_names.<locals>.<lambda>"(#loc3))
#loc5 = loc(callsite(#loc4 at #loc4))
#loc6 = loc("jit(dot_general)"(#loc4))
#loc7 = loc("jit(dot_general)/dot_general"(#loc5))
