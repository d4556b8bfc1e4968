"""Roles from names as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import postmortem
from postmortem.core.role_table import COMMON, role_by_rules
from postmortem.core.roles import ROLES, _role_of_name, is_total, plain_name, role_of, roles_of

_LISTS = {
    "loss": """
        Train-SmoothL1 | smooth_l1 | l_pix | l_g_percep | triplet | train/triplet | contrastive | nt_xent | arcface |
        loss | train/loss | Loss/train | lm loss | train_loss | training_loss | losses/policy_loss | d_loss |
        train/epoch_loss | nll | kl_loss | objective_loss | Loss | LOSS | trainLoss | train loss | Training Loss |
        training/loss | train/loss_step | train_loss_epoch | loss_epoch | total_loss | loss_total | total loss |
        TotalLoss | Total Loss | loss/total | train/total_loss | losses/total | lm_loss | mlm_loss | ce_loss |
        td_loss | loss_fn | lossfn | nll_loss | neg_log_likelihood | negative_log_likelihood | train/nll | bce |
        bce_loss | BCE | ce | CE | cross_entropy | crossentropy | CrossEntropyLoss | cross-entropy | xent |
        train_xent | binary_crossentropy | logloss | log_loss | training's binary_logloss | train-mlogloss | mse |
        MSE | train_mse | MSELoss | rmse | train_rmse | RMSE | mae | MAE | mean_squared_error |
        mean_absolute_error | smooth_l1_loss | huber | huber_loss | hinge_loss | kld_loss | recon_loss |
        reconstruction_loss | vae_loss | elbo_loss | neg_elbo | nelbo | g_loss | D_loss | G_loss | Loss_D |
        Loss_G | D_A | G_B | cycle_A | idt_B | G_GAN | G_L1 | lossD | lossG | errD | errG |
        loss_G_GAN | loss_idt_A | gen_loss | disc_loss | loss_disc |
        generator/loss | policy_loss | value_loss | losses/value_loss | train/policy_gradient_loss | critic_loss |
        actor_loss | qf1_loss | losses/qf_loss | info/learner/default_policy/learner_stats/total_loss | vf_loss |
        entropy_loss | box_loss | train/box_loss | cls_loss | dfl_loss | obj_loss | train/obj_loss | loss_cls |
        loss_bbox | loss_rpn_cls | loss_rpn_bbox | loss_mask | decode.loss_ce | aux_loss | loss_classifier |
        loss_box_reg | loss_objectness | diffusion_loss | denoising_loss | loss_simple | train/loss_simple_step |
        vlb_loss | loss_ctc | ctc_loss | loss_att | rnnt_loss | mel_loss | loss/g/mel | loss/g/total |
        loss/d/total | stopnet_loss | duration_loss | bpr_loss | ranking_loss | contrastive_loss | InfoNCE_loss |
        info_nce_loss | triplet_loss | distill_loss | loss_kd | physics_loss | pde_loss | data_loss | bc_loss |
        bpc | bits_per_byte | lm | td | cost | train cost | criterion | smoothed_loss | loss_ema | avg_loss |
        average loss | running_loss | mean_loss | epoch_loss | batch_loss | Average Loss | step_loss | dice_loss |
        iou_loss | loss_giou | loss/dice | reward_loss | reg_loss | regularization_loss | perceptual_loss |
        loss_lpips | commit_loss | vq_loss | load_balancing_loss | router_z_loss | moe_aux_loss | mtp_loss |
        rewards/dpo_loss | loss1 | loss_2 | Train/Loss | loss (train) | train_loss_total | reduced_train_loss |
        global/loss | log_loss_train | 损失 | 训练损失 | Verlust |
        Trainingsverlust | perte | pérdida | perdida | perdita | perda | потери | функция потерь | 損失 | 손실 |
        nce | nonlinear_loss | noise_loss | minibatch_loss
    """,
    "val_loss": """
        nme | validation_nme | Error (MPJPE) | PA-MPJPE | val/wer | WER | test_cer |
        val/loss | val_loss | eval_loss | validation loss | Loss/val | val lm loss value | valid_loss | test/loss |
        VaLoss | te_loss | ошибка валидации |
        valLoss | eval/loss | test_loss | Test Loss | test loss | validation_loss | validation/loss | dev_loss |
        Loss/test | val_total_loss | eval_total_loss | val_nll | valid_nll | val_mse | val_mae | val_rmse |
        eval_rmse | valid_0's binary_logloss | eval-logloss | validation_0-logloss | valid_1's l2_loss | test/mse |
        val/box_loss | val lm loss | valid nll_loss | heldout_loss | held-out loss | val_bce | test_nll |
        va_nll | va_xe | vl_loss | dv/loss |
        val_cross_entropy | 验证损失 | epoch_val_loss | val/neg_elbo | test_rmse | val_epoch_loss | losses/validation |
        tel | held/criterion | holdout_loss | Validierungsverlust | Prüfung/Verlust | Pruefung/mse | perte_validation |
        pérdida de validación | perda_validacao | потери на валидации | 検証損失 | 검증 손실
    """,
    "grad_norm": """
        grad_norm | grad norm | train/grad_norm | Grad/norm | gnorm | gradient_norm | global_grad_norm | gradnorm |
        GradNorm | grad-norm | Grad Norm | gradient norm | total_norm | total_grad_norm | global_norm |
        grad_l2_norm | grad_l2 | l2_grad_norm | grad_norm_total | norm_grad | norm/grad | grad/norm |
        gradients/norm | gradients/global_norm | grad_2.0_norm_total | g_norm | gn | optim/total_grad_norm |
        pre_clip_norm | norm_before_clip |
        opt/total_norm | grad_norm_before_clip | pre_clip_grad_norm | grad_norm_pre_clip | unclipped_grad_norm |
        raw_grad_norm | mean_grad_norm | avg_grad_norm | gradient_magnitude | grad_mag | norm of grad |
        norm of the gradient | norm of gradients | L2 norm of gradients | grad_norms | grad_norm/global |
        grad_norm/total | grads/total_norm | ‖grad‖ | policy_grad_norm | actor/grad_norm | train/global_grad_norm |
        Gradient Norm | grad_norm (L2) | all_grad_norm | grad norm before clipping | total_norm_before_clip |
        grad_total | Gradientennorm | norme_grad | norme du gradient | norma del gradiente | норма градиента |
        梯度范数 | 勾配ノルム | 기울기 노름
    """,
    "layer_grad_norm": """
        grad_norm/layer3 | grad_norm_layer0 | grad_2.0_norm/encoder.weight | gradient_norm/fc1.weight |
        layers.0.grad_norm | grads/layer1/norm | grad_norm.blocks.3.attn | gnorm/conv1
    """,
    "lr": """
        optim/LR (group 0) |
        lr | learning_rate | train/lr | LR | learning rate | lr-AdamW | lr/group0 | learningRate | Learning Rate |
        lr-Adam/pg1 | lr/pg0 | train/learning_rate | optim/learning_rate_group0 | min_lr | base_lr | lr_0 |
        current_lr | l.r. | Lernrate | taux d'apprentissage | tasa de aprendizaje | tasso di apprendimento |
        taxa de aprendizado | скорость обучения | 学习率 | 学習率 | 학습률
    """,
    "loss_scale": """
        loss_scale | loss scale | AMP_scale | train/loss_scale | grad_scale
    """,
    "throughput": """
        tokens/s | samples_per_second | perf/samples_per_sec | throughput | wps | mfu
    """,
    "step_time": """
        step_time | Time/step | elapsed time per iteration (ms) | iter time (s) | time |
        Zeit | temps | tiempo | время | 耗时 | 所要時間
    """,
    "data_time": """
        fetch | fetch ms | wait time | data_time | Time/data | perf/data_time
    """,
    "memory": """
        gpu_mem_gb | memory | mem/allocated_gb | Memory/gpu_gb
    """,
    "accuracy": """
        current accu | t2m/R01 | txt2vid/r5 | spearmanr | Pearson | CIDEr | cohen_kappa |
        acc | accuracy | train/acc | top1 | Accuracy | train_acc | trainAcc | train/acc1 | top_5 | Acc@1 | Acc@5 |
        acc@1 | Prec@1 | prec1 | mAP | mAP@.5 | mAP50 |
        AP50 | mIoU | miou | mean_iou | IoU | mean_dice | mDice | dice | Dice | dice_score | DSC |
        f1 | F1 | macro_f1 | f1_score | auc | AUC | auroc | roc_auc | precision | recall |
        bleu | BLEU | rougeL | psnr | PSNR | ssim | MS-SSIM | msssim | vmaf | ndcg@10 |
        NDCG@10 | hits@10 | HR@10 | mrr | acc_best |
        mean_token_accuracy | rewards/accuracies | categorical_accuracy | sparse_categorical_accuracy | aAcc |
        mAcc | R1@10 | Genauigkeit % | précision | exactitud | accuratezza | acurácia | точность | 准确率 |
        正解率 | 정확도 | R@1 | i2t R@5 | P@10 | txt_r1 | hit_rate | Hit@10 | MRR | nDCG@10 | Recall@K
    """,
    "val_accuracy": """
        metrics/mAP_0.5 | metrics/mAP50-95(B) | metrics/precision | bbox_mAP | bbox_mAP_50 | bbox/AP50 | segm/AP |
        ValSpearman | val/srcc | Validate Acc@1 |
        val_acc | eval_accuracy | Accuracy/val | val/acc | valAcc | test_acc | Test Accuracy | val/acc_best |
        VaAcc | val_f1 | val_auc | valid_accuracy | test/mAP | val/mIoU | eval_bleu | val/dice | 验证准确率 | test_acc1
    """,
    "perplexity": """
        ppl | perplexity | train_ppl
    """,
    "reward": """
        Ep_r | reward_mean | rollout_ep_rew_mean | charts/episodic_return
    """,
    "epoch": """
        epoch | train/epoch
    """,
    None: """
        Time cost | time_cost | episode_time | accu_steps |
        timesteps_total | time/epoch | Best val RMSE | num_memory_blocks | null_score_diff_threshold |
        Total Training Time |
        accumulated_submission_time | accumulated_logging_time | train_wall | wall | loss_scale_window |
        min_scale | number of nan iterations | consumed samples | total_duration | batch_size | loss_weight |
        loss_weight/adv | train/loss_weights/kl | coef/entropy |
        objective | train/objective | policy_objective | objective/entropy | objective/kl | approx_kl | kl_coef |
        elbo | loss_weights | aux_loss_weight | kl_loss_weight | aux_loss_coef | loss_coef | loss_coefficient |
        loss_lambda | loss_ratio | loss_factor | num_loss | n_loss | num_losses | nb_loss | no_loss |
        full_loss_num | loss_num | loss_count | loss_counter | nan_loss_count | loss_nan_count | best_loss |
        best_val_loss | min_loss | lowest_loss | lowest_val_loss | max_loss | prev_loss | previous_loss |
        best loss | Best val loss | loss_delta | loss_change | loss_improvement | loss_gap | loss_std |
        loss_stddev | loss_variance | loss_min | loss_threshold | loss_tol | loss_patience | loss_type |
        loss_reduction | loss_time | loss_time_ms | time/loss | timing/loss | timers/loss_fn | loss_freq |
        loss_interval | loss_steps | loss_tokens | loss_warmup | loss_is_nan | loss_isnan | loss_finite |
        loss_index | loss_idx | loss_window | loss_smoothing | use_aux_loss | use_loss | has_loss | is_loss |
        log_loss_every | skip_loss | enable_loss | normalize_loss | packet_loss | lossless | lossy |
        lossless_ratio | glossary | ce_weight | bce_weight | mse_weight | mae_threshold | kl_weight |
        entropy_coef | logit_scale | reward_scale | weight_scale | action_scale | max_grad_norm | clip_grad |
        grad_clip | gradient_clip_val | clip_grad_norm | grad_norm_clip | grad_norm_threshold | grad_clip_norm |
        grad_norm_clipped | clipped_grad_norm | grad_norm_weight | grad_norm_coef | param_norm | weight_norm |
        update_norm | weights/total_norm | param/total_norm | params_global_norm | embedding/global_norm |
        FID | val/fid | kid | d_kernel_map | feature_map | reward_std | inception_score_std |
        latent_norm | feature_norm | norm | layer_norm | batch_norm | grad_accum | grad_acc_steps |
        gradient_accumulation_steps | acc_steps | accumulate | lr_decay | lr_gamma | lr_warmup | lr_factor |
        lr_mult | lr_patience | lr_schedule | lr_steps | memory_size | memory_capacity | memory_bank |
        reward_weight | best_score | best_metric | best_epoch | best_step | log_likelihood | loglik |
        train/log_likelihood | log_prob | logp | train/elbo | lower_bound | entropy | explained_variance |
        clip_fraction | total | total_train | seed | iou_threshold | map_size | num_nan | nan_count |
        skipped_iters | skipped loss | weight | bias | labels | images | box | cls | td_error | temperature |
        sigma | beta | gamma | margin | x | step | global_step | num_params | total_params | tokens_seen |
        consumed_tokens | eval_runtime | eval_samples_per_second | hysteresis | ema_decay | weight_decay |
        momentum | dropout | noise | grad_std | weight_std |
        最佳损失 | beste Verlust | Datenverlust | grad_first | held
    """,
}
"""Role -> its names, between bars."""
NAMES = {role: [name.strip() for name in names.split("|") if name.strip()] for role, names in _LISTS.items()}


def test_common_names_have_the_roles_of_the_rules() -> None:
    """What is noted of them is what the rules say."""
    assert {name: role_by_rules(name) for name in COMMON} == COMMON


@pytest.mark.parametrize(("role", "name"), [(role, name) for role, names in NAMES.items() for name in names])
def test_role_of(role, name):
    """Each name gets the role that a person would give it; counters, settings and totals get none."""
    assert role_of(name) == role


@given(st.sampled_from(sorted({name for names in _LISTS.values() for name in names.split(" | ")})), st.data())
def test_digits_of_long_numbers_decide_nothing(name: str, data: st.DataObject) -> None:
    """Names that differ in the digits of a number of three or more are matched once, and have the role of each."""
    at = data.draw(st.integers(0, len(name)))
    number = data.draw(st.from_regex(r"\d{3,8}", fullmatch=True))
    tag = f"{name[:at]}{number}{name[at:]}"
    assert role_of(tag) == _role_of_name(plain_name(tag))


def test_roles_are_known():
    """No role outside of the list that the documentation and the options name."""
    assert {role for role in NAMES if role is not None} <= set(ROLES)


def test_a_name_of_a_megabyte_has_no_role():
    """A name beyond all reason costs no time: it has no role, however it begins and ends."""
    assert role_of("loss" + "x-" * 500_000 + "loss") is None
    assert role_of("loss/" + "x" * 200) == "loss"


FALLING, RISING = np.linspace(3, 1, 40), np.linspace(1, 3, 40)


@pytest.mark.parametrize(
    ("tags", "roles"),
    [
        ("box obj cls total labels", {"total": "loss", "labels": None}),
        ("total_loss box total", {"total": None}),  # there is a total already
        ("total", {"total": "loss"}),
        ("loss total", {"total": None}),
        ("train/recon train/kl train/total", {"train/total": "loss"}),
        ("loss acc v_loss v_acc", {"v_loss": "val_loss", "v_acc": "val_accuracy"}),
        ("t_loss v_loss", {"t_loss": "loss", "v_loss": "val_loss"}),
        ("loss v_loss pg_loss entropy", {"v_loss": "loss"}),  # the value's, in PPO
        ("Loss Grad", {"Grad": "grad_norm"}),
        ("x Grad", {"Grad": None}),
        ("loss lr norm", {"norm": "grad_norm"}),
        ("train/loss train/lr train/norm", {"train/norm": "grad_norm"}),
        ("loss norm", {"norm": None}),  # of the weights, of a layer
        ("loss lr val/norm embedding/norm", {"val/norm": None, "embedding/norm": None}),
        ("train val", {"train": "loss", "val": "val_loss"}),
        ("loss train val", {"train": "loss", "val": "val_loss"}),  # of the same size
        ("loss pos val val_pos", {"val": "val_loss", "val_pos": None}),
        ("objective", {"objective": "loss"}),
        ("epe val/epe LPIPS", {"epe": "loss", "val/epe": "val_loss", "LPIPS": "loss"}),
        ("loss epe val/LPIPS", {"epe": None, "val/LPIPS": None}),  # errors beside the loss that is minimised
        ("r l t", {"r": "reward", "l": None}),
        ("loss v_loss v_a2b/R05", {"v_loss": "val_loss", "v_a2b/R05": "val_accuracy"}),
        ("policy_loss loss v_loss v_a2b/R05", {"v_a2b/R05": "accuracy"}),
        ("data PDE phys total", {"data": None, "total": "loss"}),  # parts of a loss
        ("data loss cls", {"data": "data_time"}),
        ("data PDE phys time loss", {"data": "data_time", "time": "step_time"}),
        ("epoch_loss epoch_accuracy evaluation_loss_vs_iterations", {"epoch_loss": "val_loss"}),  # Keras' validation
        ("epoch_loss epoch_accuracy", {"epoch_loss": "loss", "epoch_accuracy": "accuracy"}),
    ],
)
def test_names_that_mean_something_only_beside_others(tags, roles):
    """The other tags of a run tell what `total`, `v_loss`, `Grad` and `train` mean."""
    found = roles_of(tags.split(), lambda tag: FALLING)
    assert {tag: found[tag] for tag in roles} == roles


def test_train_and_val_beside_a_loss_of_another_size_are_no_losses():
    """Only what is as large as the loss beside it is one: it may be a score, or anything else."""
    found = roles_of(["loss", "train", "val"], lambda tag: FALLING if tag == "loss" else 30 * FALLING)
    assert found == {"loss": "loss", "train": None, "val": None}


@pytest.mark.parametrize(("values", "role"), [(FALLING, "loss"), (RISING, "accuracy")])
def test_a_score_that_is_named_as_an_objective_is_a_loss_if_it_falls(values, role):
    """``dice_objective`` is one minus the score where it is minimised."""
    assert roles_of(["dice_objective"], lambda tag: np.asarray(values)) == {"dice_objective": role}


@pytest.mark.parametrize(("last", "role"), [(0.2, "loss"), (18.4, "reward")])
def test_a_score_is_a_loss_only_if_it_falls_far(last, role):
    """DL4J calls its loss the score; the scores of a search are sorted, best first."""
    assert roles_of(["Score"], lambda tag: np.linspace(20.0, last, 12)) == {"Score": role}


def test_an_objective_is_a_loss_only_if_it_falls(tmp_path):
    """A minimised objective is judged as a loss, a maximised one has no role; a late divergence changes nothing."""
    for name, values in {"falls": FALLING, "rises": RISING, "diverges": [*FALLING, *(np.arange(20) + 2.0)]}.items():
        (tmp_path / f"{name}.csv").write_text(
            "step,objective,lr\n" + "".join(f"{i},{v},0.1\n" for i, v in enumerate(values))
        )
    roles = {
        name: postmortem.load(tmp_path / f"{name}.csv").roles["objective"] for name in ("falls", "rises", "diverges")
    }
    assert roles == {"falls": "loss", "rises": None, "diverges": "loss"}


def test_the_whole_loss_is_told_from_its_parts():
    """The total is what detectors judge where it is logged."""
    whole = ["loss", "total_loss", "train/loss", "Loss/train", "loss_total", "lm loss", "total", "val lm loss value"]
    parts = ["box_loss", "loss_cls", "kl_loss", "loss/dice", "d_loss", "nll_loss", "entropy"]
    assert [is_total(name) for name in whole + parts] == [True] * len(whole) + [False] * len(parts)


def test_the_total_is_the_main_loss(tmp_path):
    """A diverging total is found although its parts are logged as often and come first."""
    rows = [
        f"{i},{1 - i / 400:.4f},{0.5 + i / 9000:.4f},{3 - i / 200 if i < 150 else 1.02 ** (i - 100):.4f}"
        for i in range(300)
    ]
    (tmp_path / "log.csv").write_text("step,box_loss,cls_loss,total_loss\n" + "\n".join(rows) + "\n")
    found = [f for run in postmortem.scan(tmp_path).runs for f in run.findings]
    assert "total_loss" in {f.tag for f in found}
    assert not {"box_loss", "cls_loss"} & {f.tag for f in found}
