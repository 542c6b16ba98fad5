"""REINFORCE on a corridor of seven cells: the right end pays. Actions are drawn by NumPy from the policy."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from start import weights
from torch.distributions import Categorical

draw = np.random.RandomState(2)


class Policy(nn.Module):
    def __init__(self):
        super(Policy, self).__init__()
        self.affine1 = nn.Linear(7, 16)
        self.affine2 = nn.Linear(16, 2)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.affine1(x))), dim=1)


def select_action(state):
    state = torch.from_numpy(state).float().unsqueeze(0)
    m = Categorical(policy(state))
    action = torch.tensor([int(draw.rand() < m.probs[0, 1].item())])
    policy.saved_log_probs.append(m.log_prob(action))
    return action.item()


def finish_episode(gamma=0.9):
    R, returns = 0, []
    for r in policy.rewards[::-1]:
        R = r + gamma * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-3)
    policy_loss = [-log_prob * R for log_prob, R in zip(policy.saved_log_probs, returns)]
    optimizer.zero_grad()
    policy_loss = torch.cat(policy_loss).sum()
    policy_loss.backward()
    optimizer.step()
    del policy.rewards[:], policy.saved_log_probs[:]
    return policy_loss.item()


policy = Policy()
policy.load_state_dict(weights(policy, torch.from_numpy))
optimizer = optim.Adam(policy.parameters(), lr=1e-2)
losses = []
for episode in range(20):
    place = 3
    for t in range(12):
        place += 1 if select_action(np.eye(7)[place]) else -1
        policy.rewards.append(1.0 if place == 6 else -0.1)
        if place in (0, 6):
            break
    losses.append(finish_episode())
