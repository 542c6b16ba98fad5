"""A convolutional network in mixed precision, as scripts with --amp are written. The comment `here:` is one line more
in tinymp."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from start import images, weights
from torch.amp import GradScaler, autocast


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool2d(4),
        )
        self.dropout = nn.Dropout(0.0)
        self.fc = nn.Linear(32 * 4 * 4, 10)

    def forward(self, x):
        x = torch.flatten(self.features(x), 1)
        return self.fc(self.dropout(x))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
model.load_state_dict(weights(model, torch.from_numpy))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
# here: model, optimizer = torch.amp.prepare(model, optimizer)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20)
scaler = GradScaler(device.type, init_scale=1024.0)
x, y = images(320)
losses = []
model.train()
for step in range(20):
    data = torch.from_numpy(x[step * 16 : step * 16 + 16]).to(device, non_blocking=True)
    target = torch.from_numpy(y[step * 16 : step * 16 + 16]).to(device, non_blocking=True)
    optimizer.zero_grad(set_to_none=True)
    with autocast(device_type=device.type, dtype=torch.float16):
        output = model(data)
        loss = F.cross_entropy(output, target)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    losses.append(loss.item())
